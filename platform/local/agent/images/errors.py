"""Errors of images."""


class ImageError(Exception):
    """An image, or what it was read from, is invalid or not supported; the text is for users."""
