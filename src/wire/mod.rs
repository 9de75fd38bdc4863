//! Layer 2: bytes to events and back: request head, response framing, chunked, event streams, API bodies.
