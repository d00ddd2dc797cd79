//! Accepting connections, and refusing them while the proxy is cut.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time,
};

use super::{connection, control::Shared};
use crate::{
    error::{Error, Result},
    ports,
};

/// How long to wait before a port is asked for again that somebody else has at the moment.
const AGAIN: Duration = Duration::from_millis(5);
const ATTEMPTS: usize = 5;

/// A port that is ours.
pub(super) struct Bound {
    listener: StdListener,
    addr: SocketAddr,
}

pub(super) fn bind() -> Result<Bound> {
    let mut attempt = 1;
    loop {
        let [port] = ports::free()?;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let bound = StdListener::bind(addr).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        match bound {
            Ok(listener) => return Ok(Bound { listener, addr }),
            Err(_) if attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(Error::io(format!("listening at {addr}"))(error)),
        }
    }
}

impl Bound {
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until it is aborted, and every connection with it.
    pub(super) async fn accept(self, shared: Arc<Shared>) {
        let mut control = shared.control.subscribe();
        let mut connections = JoinSet::new();
        let mut listener = TcpListener::from_std(self.listener).ok();
        loop {
            let cut = control.borrow_and_update().cut;
            if cut {
                listener = None;
            } else if listener.is_none() {
                listener = TcpListener::bind(self.addr).await.ok();
            }
            shared.listening.send_replace(listener.is_some());
            tokio::select! {
                biased;
                changed = control.changed() => if changed.is_err() { return },
                Some(_) = connections.join_next() => {}
                () = time::sleep(AGAIN), if listener.is_none() && !cut => {}
                accepted = next(listener.as_ref()), if listener.is_some() => match accepted {
                    Ok((client, _)) => {
                        shared.connections.fetch_add(1, Ordering::Relaxed);
                        let open = connection::Open::count(&shared);
                        let generation = shared.control.borrow().generation;
                        connections.spawn(connection::serve(client, generation, open));
                    }
                    Err(_) => time::sleep(AGAIN).await,
                },
            }
        }
    }
}

async fn next(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}
