"""What runs tell, and how it is drawn."""
