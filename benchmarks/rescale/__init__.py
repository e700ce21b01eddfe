"""The time of a change of slots: this project against relaunching, ddp_spawn and torchrun."""
