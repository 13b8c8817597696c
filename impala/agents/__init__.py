"""What is learned: networks, how an action is chosen, what is kept of it, loss and what follows an update."""
