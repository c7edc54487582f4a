"""torchrun's elastic agent with our rules: when to restart, how quickly, what a silent gang was doing."""
