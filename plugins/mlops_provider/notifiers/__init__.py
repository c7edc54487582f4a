"""By what people are told of incidents."""
