"""Which digit is it? A small convolutional net that learns ten classes from images, from YAML."""
