"""Shamir's secret sharing of 256-bit secrets over the prime field just above 2^256.

Every share is computed by the same multiplications and additions whatever the secret; nothing branches on it. Points
are 1, 2, 3, ...; a share is 33 bytes, big-endian.
"""

from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
SHARE_BYTES = 33
SECRET_BYTES = 32
COEFFICIENT_BYTES = 48  # 384 random bits reduced modulo the prime are uniform to 2^-127


def deal(secret: bytes, threshold: int, points: Sequence[int], randomness: bytes) -> list[bytes]:
    """One share per point, any `threshold` of which give the secret and fewer nothing.

    `randomness` is (threshold - 1) * 48 secret random bytes, used for this secret only.
    """
    if len(secret) != SECRET_BYTES or len(randomness) != (threshold - 1) * COEFFICIENT_BYTES:
        raise ValueError("a secret has 32 bytes, and each further coefficient takes 48 random ones")
    if not 1 <= threshold <= len(points) or len(set(points)) != len(points) or min(points) < 1:
        raise ValueError("the threshold is between 1 and the number of points, which are distinct and positive")
    coefficients = [
        int.from_bytes(randomness[at : at + COEFFICIENT_BYTES]) % PRIME
        for at in range(0, len(randomness), COEFFICIENT_BYTES)
    ]
    coefficients.append(int.from_bytes(secret))
    shares = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES))
    return shares


def open_secret(shares: Mapping[int, bytes]) -> bytes:
    """The secret behind shares {point: share}, all of which are used. ValueError if they cannot belong together."""
    values = {point: int.from_bytes(share) for point, share in shares.items()}
    if not values or any(len(share) != SHARE_BYTES for share in shares.values()) or max(values.values()) >= PRIME:
        raise ValueError("not a set of shares")
    secret = 0
    for point, value in values.items():
        numerator = denominator = 1
        for other in values:
            if other != point:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - point) % PRIME
        secret = (secret + value * numerator * pow(denominator, -1, PRIME)) % PRIME
    if secret >= 2**256:
        raise ValueError("the shares do not belong together")
    return secret.to_bytes(SECRET_BYTES)
