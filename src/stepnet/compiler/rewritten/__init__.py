"""What a step asks for, written otherwise as it is traced: functions and inner loops in plainer calls."""
