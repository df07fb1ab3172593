"""What runs inside the emulated host: scenarios, and the program that runs them one by one."""
