"""What families of methods have in common; a method is what distinguishes it."""
