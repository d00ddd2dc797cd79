//! Ports that no other program uses.
//!
//! `bind(0)` would hand out ports of the system's ephemeral range. While a server of the testbed is
//! down, any outgoing connection could take such a port, and a client that keeps dialling it can
//! even connect to itself. Ports are therefore chosen at random below that range and tried with
//! `bind`. Another program can still be faster: a start that fails for this reason is repeated.
//!
//! Another running test could take the port of a server that is down, and no repetition helps then.
//! Each process therefore keeps the UDP port of that number, which none of the servers uses, for as
//! long as it runs.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    sync::{Mutex, PoisonError},
};

use crate::error::{Error, Result};

const LOWEST: u16 = 12_000;
const ATTEMPTS: usize = 5;
const EPHEMERAL_UNLESS_TOLD: u16 = 32_768;

/// The UDP sockets that keep the ports of this process from itself and from others.
static TAKEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// Several free ports, all different.
pub(crate) fn free<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    for port in &mut ports {
        *port = one()?;
    }
    Ok(ports)
}

/// Listens on a free port at once, so that no other program can take it.
pub(crate) fn listen() -> Result<(TcpListener, SocketAddr)> {
    let mut attempt = 1;
    loop {
        let [port] = free()?;
        let addr = addr(port);
        match TcpListener::bind(addr)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        {
            Ok(listener) => return Ok((listener, addr)),
            Err(_) if attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(Error::io(format!("listening at {addr}"))(error)),
        }
    }
}

/// The address at which a server of the testbed listens at this port.
pub(crate) fn addr(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn one() -> Result<u16> {
    let end = ephemeral_begin().max(LOWEST + 1_000);
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..10_000 {
        let port = fastrand::u16(LOWEST..end);
        let Ok(kept) = UdpSocket::bind(addr(port)) else {
            continue;
        };
        if TcpListener::bind(addr(port)).is_ok() {
            taken.push(kept);
            return Ok(port);
        }
    }
    Err(Error::answer("choosing a free port", "none was found"))
}

fn ephemeral_begin() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(EPHEMERAL_UNLESS_TOLD)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ports_differ() {
        let ports: BTreeSet<u16> = free::<50>().unwrap().into();
        assert_eq!(ports.len(), 50);
        assert!(
            ports
                .into_iter()
                .all(|port| UdpSocket::bind(addr(port)).is_err()),
            "others may take it while its server is down"
        );
    }
}
