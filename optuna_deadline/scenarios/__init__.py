"""What if: a study simulated on from where it stands, as it is and with more of something."""
