"""What an agent remembers and how it uses it: MIA, and the methods it is compared with, all on one loop."""
