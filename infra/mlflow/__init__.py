"""Everything that uses MLflow: the recorder, the end of a session, a training's own calls. No
decision depends on what MLflow contains.
"""
