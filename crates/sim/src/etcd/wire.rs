//! How calls travel in a world: each is a connection of its own, which carries frames of bytes in their order. In the place of HTTP/2
//! with its many calls over one connection, which say nothing to each other either.

/// What a frame is. From a client: the method's path, messages, their end. From a server: messages, the status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Path = 0,
    Messages = 1,
    End = 2,
    Ping = 3,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        [Kind::Path, Kind::Messages, Kind::End, Kind::Ping].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A frame.
pub(crate) fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    [&[kind as u8], &length.to_be_bytes()[..], payload].concat()
}

/// A message, as gRPC has it: not compressed, and how long it is.
pub(crate) fn message(message: &impl prost::Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], &bytes].concat()
}

/// Takes the next frame out of what has arrived, if it is there as a whole.
pub(crate) fn next_frame(bytes: &mut Vec<u8>) -> Option<(Kind, Vec<u8>)> {
    let (kind, payload) = next(bytes)?;
    Some((Kind::of(kind)?, payload))
}

/// The same of a message.
pub(crate) fn next_message(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    Some(next(bytes)?.1)
}

fn next(bytes: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let (head, rest) = bytes.split_first_chunk::<5>()?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let (kind, payload) = (head[0], rest.get(..length)?.to_vec());
    bytes.drain(..5 + length);
    Some((kind, payload))
}
