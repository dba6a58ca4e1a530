"""The kinds of recurrence besides `recurrent`: the while loop as a frame, the RNN op, the dynamic RNN."""
