"""What a live seat's engine was given and answered, on disk, for the simulator to judge again."""
