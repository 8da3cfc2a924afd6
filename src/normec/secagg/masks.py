"""Keys and masks: X25519, HKDF, streams of AES-256 in counter mode, and sealed boxes of ChaCha20-Poly1305."""

from __future__ import annotations

import os

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from normec.secagg.plan import digest

CHUNK = 2**14
"""Numbers of a mask that are made and added at a time: 64 KiB, which stay in the cache."""
NONCE = 12


def public(private: bytes) -> bytes:
    """The public key (32 bytes) of an X25519 private key (32 bytes)."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public_key: bytes, purpose: str, *bound: bytes) -> bytes:
    """A key (32 bytes) that two parties derive alike from each other's X25519 keys, for one purpose and bound to what it is used in.

    Raises:
        ValueError: for a public key of low order, or of another length.
    """
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public_key))
    return derived(shared, purpose, *bound)


def derived(secret: bytes, purpose: str, *bound: bytes) -> bytes:
    """A key (32 bytes) by HKDF-SHA256."""
    return HKDF(SHA256(), 32, salt=None, info=digest(purpose, *bound)).derive(secret)


def usable_key(public_key: bytes) -> bool:
    """Whether an X25519 public key is one that others can agree on a secret with."""
    try:
        agreed(os.urandom(32), public_key, "trial")
    except ValueError:
        return False
    return True


def add_mask(total: np.ndarray, key: bytes, *, subtract: bool = False) -> None:
    """Adds the stream of a key to numbers (d,) of type uint32 in place, modulo 2³², or takes it away."""
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor()
    zeros, made = bytes(4 * CHUNK), bytearray(4 * CHUNK + 15)
    change = np.subtract if subtract else np.add
    for start in range(0, len(total), CHUNK):
        part = total[start : start + CHUNK]
        stream.update_into(zeros, made)
        change(part, np.frombuffer(made, dtype="<u4", count=len(part)), out=part)


def seal(key: bytes, text: bytes, bound: bytes) -> bytes:
    """A box that only holders of the key can open, or have made; `bound` is not in it and must be known to open it."""
    nonce = os.urandom(NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, bound)


def unseal(key: bytes, box: bytes, bound: bytes) -> bytes | None:
    """What a box holds; None for one that was not made with this key."""
    try:
        return ChaCha20Poly1305(key).decrypt(box[:NONCE], box[NONCE:], bound)
    except (InvalidTag, ValueError):
        return None


def signed_by(identity: bytes, signature: bytes, text: bytes) -> bool:
    """Whether an Ed25519 public key (32 bytes) has signed a text."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
