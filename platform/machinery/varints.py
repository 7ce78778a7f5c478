"""Integers as protobuf encodes them."""


def encode_varint(value: int) -> bytes:
    """Return *value*, which is not negative, with seven bits in each byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
