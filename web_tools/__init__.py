"""Online search: Serper text, image and lens search, page visits, image-to-image search, cache and replay."""
