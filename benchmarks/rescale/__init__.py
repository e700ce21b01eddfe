"""What it costs a trial to change its slots: ours against relaunching, ddp_spawn and torchrun."""
