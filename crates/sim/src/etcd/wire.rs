//! The form of calls in a world. Each call is a connection of its own, which carries frames of
//! bytes in their order. It replaces HTTP/2 with its many calls over one connection, which do not
//! affect each other either.

/// The kind of a frame. A client sends the method's path, messages, and their end. A server sends
/// messages and the status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Path = 0,
    Messages = 1,
    End = 2,
    Ping = 3,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        [Kind::Path, Kind::Messages, Kind::End, Kind::Ping]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// Encodes a frame.
pub(crate) fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    [&[kind as u8], &length.to_be_bytes()[..], payload].concat()
}

/// Encodes a message as gRPC does: not compressed, and with its length.
pub(crate) fn message(message: &impl prost::Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], &bytes].concat()
}

/// Takes the next frame out of the bytes that have arrived, if it is complete.
pub(crate) fn next_frame(bytes: &mut Vec<u8>) -> Option<(Kind, Vec<u8>)> {
    let (kind, payload) = next(bytes)?;
    Some((Kind::of(kind)?, payload))
}

/// Takes the next message out of the bytes that have arrived, if it is complete.
pub(crate) fn next_message(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    Some(next(bytes)?.1)
}

fn next(bytes: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let (head, rest) = bytes.split_first_chunk::<5>()?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let kind = head[0];
    let payload = rest.get(..length)?.to_vec();
    bytes.drain(..5 + length);
    Some((kind, payload))
}
