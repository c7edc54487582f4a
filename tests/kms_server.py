"""moto's server with a KMS that signs digests as AWS does; moto 5.2 signs the digest of the digest."""

import base64
import sys

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from moto.kms.utils import ECDSAPrivateKey
from moto.server import main


def sign(self: ECDSAPrivateKey, message: bytes, signing_algorithm: str) -> bytes:
    """:param message: as the client sent it: a digest, in base64"""
    assert signing_algorithm == "ECDSA_SHA_256"
    digest = base64.b64decode(message, validate=True) if len(message) == 44 else message
    return self.private_key.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256())))


ECDSAPrivateKey.sign = sign  # type: ignore[method-assign]
main(sys.argv[1:])
