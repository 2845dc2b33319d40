"""Running a program (`command:`) as a trainable: started, monitored, ended with its attempt."""
