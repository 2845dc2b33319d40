"""GPUs: tests on a machine without any, by a stand-in for the driver's library, and those that need a
real one (`make gpu`).
"""
