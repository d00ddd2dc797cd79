//! The messages between the command and its guardian: one JSON text per packet of a socket pair, with file descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::deadline::Deadline;
use crate::processes::Left;

/// Messages from the command to the guardian.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Start the program. The message carries the store's life line, up to two descriptors, if the
    /// store has one.
    Start(Start),
    /// The lock is surely held until this deadline.
    Deadline(Deadline),
    /// Pass this signal on. A signal from systemd is passed on only if it did not go to the program
    /// as well.
    Signal { number: i32, from_systemd: bool },
    /// End the program: ask it first and kill it after the grace, or kill it at once.
    End { at_once: bool },
}

/// The settings with which the program is run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// The command's process id.
    pub(crate) command: i32,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) deadline: Deadline,
    /// The program gets the terminal.
    pub(crate) foreground: bool,
    pub(crate) leftovers: Leftovers,
}

/// The treatment of processes that the program leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Leftovers {
    /// End those of its process group, then release.
    Kill,
    /// Release when all of them have ended, as flock(1) does.
    Wait,
    /// Release at once and let them run on without the lock.
    Leave,
}

/// Messages from the guardian to the command.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    Started {
        pid: i32,
    },
    /// The guardian has received this deadline.
    Ack(Deadline),
    Stopped {
        signal: i32,
    },
    /// The signal was not passed on: the program runs as another user.
    NotSignalled {
        signal: i32,
    },
    Ended(Ended),
    /// The program could not be started.
    Failed(String),
}

/// The end of the program, and of everything that had to end with it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// `None` if the program could not be killed.
    pub(crate) status: Option<Status>,
    pub(crate) why: Why,
    /// Processes that still run.
    pub(crate) left: Vec<Left>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Status {
    Code(i32),
    Signal(i32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Why {
    Itself,
    /// The deadline came near, and no later one was sent.
    Deadline,
    Ordered,
}

/// More than a socket takes at once. A buffer of this size has its own memory from the kernel,
/// which provides each page only when it is written to. A smaller buffer would use all of its
/// pages, however short the messages are.
const LARGEST: usize = 256 * 1024;
const MOST_FDS: usize = 2;

/// Returns the two ends of one connection. Each packet is one message, and each side sees the end
/// of the other.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Sends one message without waiting; fails with `WouldBlock` if the other side does not read.
pub(crate) fn send(
    to: impl AsFd,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other(
            "too many file descriptors for one message",
        ));
    }
    sendmsg(
        to,
        &[IoSlice::new(&text)],
        &mut control,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// A buffer for any message.
pub(crate) fn room() -> Vec<u8> {
    vec![0; LARGEST]
}

/// Receives one message, or `None` if the other side has ended. Fails with `WouldBlock` if there is
/// no message yet. After `Interrupted`, call it again.
pub(crate) fn receive<T: DeserializeOwned>(
    from: impl AsFd,
    room: &mut [u8],
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let length = match recvmsg(from, &mut [IoSliceMut::new(room)], &mut control, flags) {
        Ok(received) => received.bytes,
        // The other side ended without having read everything. The kernel reports this once, before
        // the last messages of that side.
        Err(rustix::io::Errno::CONNRESET) => return Err(io::ErrorKind::Interrupted.into()),
        Err(e) => return Err(e.into()),
    };
    if length == 0 {
        return Ok(None);
    }
    let messages = control.drain();
    let fds = messages.filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    Ok(Some((serde_json::from_slice(&room[..length])?, fds)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_fuzz::fuzz;

    use super::*;

    #[test]
    fn a_message_arrives_with_its_files_and_the_end_is_seen() {
        let (a, b) = pair().unwrap();
        let deadline = |until| {
            Order::Deadline(Deadline {
                until,
                lease: Duration::from_secs(1),
            })
        };
        send(&a, &deadline(7), &[b.as_fd()]).unwrap();
        let (order, fds) = receive::<Order>(&b, &mut room()).unwrap().unwrap();
        assert!(matches!(order, Order::Deadline(Deadline { until: 7, .. })));
        assert_eq!(fds.len(), 1);
        assert_eq!(
            receive::<Order>(&b, &mut room()).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        // The last message of a side arrives even if that side has not read ours.
        send(&a, &deadline(8), &[]).unwrap();
        send(&b, &deadline(9), &[]).unwrap();
        drop((a, fds));
        assert_eq!(
            receive::<Order>(&b, &mut room()).unwrap_err().kind(),
            io::ErrorKind::Interrupted
        );
        assert!(matches!(
            receive::<Order>(&b, &mut room()).unwrap(),
            Some((Order::Deadline(Deadline { until: 8, .. }), _))
        ));
        assert!(receive::<Order>(&b, &mut room()).unwrap().is_none());
    }

    #[test]
    fn whatever_is_received_it_is_a_message_or_refused() {
        fuzz(include_str!("../../corpus/messages"), |packet| {
            let (a, b) = pair().unwrap();
            rustix::net::send(&a, packet, SendFlags::DONTWAIT).unwrap();
            let order = receive::<Order>(&b, &mut room());
            assert!(!packet.is_empty() || order.as_ref().is_ok_and(Option::is_none));
            if let Ok(Some((order, _))) = order {
                let written = serde_json::to_vec(&order).unwrap();
                send(&a, &order, &[]).unwrap();
                let (back, _) = receive::<Order>(&b, &mut room()).unwrap().unwrap();
                assert_eq!(serde_json::to_vec(&back).unwrap(), written);
                if let Order::Start(Start { deadline, .. }) = order {
                    assert!(deadline.term_at() <= deadline.kill_at());
                }
            }
            rustix::net::send(&a, packet, SendFlags::DONTWAIT).unwrap();
            if let Ok(Some((event, _))) = receive::<Event>(&b, &mut room()) {
                let written = serde_json::to_vec(&event).unwrap();
                let back: Event = serde_json::from_slice(&written).unwrap();
                assert_eq!(serde_json::to_vec(&back).unwrap(), written);
            }
        });
    }
}
