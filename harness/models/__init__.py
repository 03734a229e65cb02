"""Recipes that make the models experiments name; they run in the arms' interpreter."""
