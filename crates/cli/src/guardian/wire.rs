//! The messages between the command and its guardian: one JSON text per packet of a socket pair, with file descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::deadline::Plan;
use crate::processes::Left;

/// From the command to the guardian. Deadlines are CLOCK_BOOTTIME in nanoseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Start the program. With it comes the store's life line of up to two, where it has one.
    Start(Start),
    /// The lock is surely held until then.
    Deadline(u64),
    /// Pass this signal on.
    Signal(i32),
    /// End the program: ask it first and kill it after the grace, or kill it at once.
    End { at_once: bool },
}

/// How to run the program.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) deadline: u64,
    pub(crate) plan: Plan,
    /// It gets the terminal.
    pub(crate) foreground: bool,
    pub(crate) leftovers: Leftovers,
}

/// What becomes of processes that the program leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Leftovers {
    /// End those of its process group, then release.
    Kill,
    /// Release when all of them have ended, as flock(1) does.
    Wait,
    /// Release at once and let them run on without the lock.
    Leave,
}

/// From the guardian to the command.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    Started {
        pid: i32,
    },
    /// It has received this deadline.
    Ack(u64),
    Stopped {
        signal: i32,
    },
    /// The program may not be signalled: it runs as another user.
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
    /// `None`: it could not be killed.
    pub(crate) status: Option<Status>,
    pub(crate) why: Why,
    /// Processes that run on.
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
    /// The deadline came near and no later one was sent.
    Deadline,
    Ordered,
}

/// More than a socket takes at once. So much is asked of the kernel by itself, and each page of it only when it is written to: a
/// smaller one would be of pages that all are used, however short the messages.
const LARGEST: usize = 256 * 1024;
const MOST_FDS: usize = 2;

/// Two ends of one connection; each packet is one message, and the end of one side is seen by the other.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends one message, without waiting: `WouldBlock` if the other side does not read.
pub(crate) fn send(to: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many file descriptors for one message"));
    }
    sendmsg(to, &[IoSlice::new(&text)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Room for any message.
pub(crate) fn room() -> Vec<u8> {
    vec![0; LARGEST]
}

/// Receives one message; `None`: the other side has ended. `WouldBlock` if there is none yet; after `Interrupted` ask again.
pub(crate) fn receive<T: DeserializeOwned>(from: impl AsFd, room: &mut [u8]) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let length = match recvmsg(from, &mut [IoSliceMut::new(room)], &mut control, flags) {
        Ok(received) => received.bytes,
        // The other side ended without having read all. It is said once, before what that side had sent last.
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
    use leasehold_fuzz::fuzz;

    use super::*;

    #[test]
    fn a_message_arrives_with_its_files_and_the_end_is_seen() {
        let (a, b) = pair().unwrap();
        send(&a, &Order::Deadline(7), &[b.as_fd()]).unwrap();
        let (order, fds) = receive::<Order>(&b, &mut room()).unwrap().unwrap();
        assert!(matches!(order, Order::Deadline(7)));
        assert_eq!(fds.len(), 1);
        assert_eq!(receive::<Order>(&b, &mut room()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // Its last message arrives also if it has not read ours.
        send(&a, &Order::Deadline(8), &[]).unwrap();
        send(&b, &Order::Deadline(9), &[]).unwrap();
        drop((a, fds));
        assert_eq!(receive::<Order>(&b, &mut room()).unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert!(matches!(receive::<Order>(&b, &mut room()).unwrap(), Some((Order::Deadline(8), _))));
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
                if let Order::Start(Start { plan, deadline, .. }) = order {
                    let deadline = leasehold::seam::Moment::from_nanos(deadline);
                    assert!(plan.term_at(deadline) <= plan.kill_at(deadline));
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
