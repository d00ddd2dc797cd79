//! Accepts connections, and refuses them while the proxy is cut.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time,
};

use super::{
    connection,
    control::{Control, Shared},
};

/// The pause before the proxy asks again for a port that another program has at the moment.
const AGAIN: Duration = Duration::from_millis(5);

/// Serves connections until it is aborted, which ends every one of them.
pub(super) async fn accept(listener: StdListener, addr: SocketAddr, shared: Arc<Shared>) {
    let mut control = shared.control.subscribe();
    let mut connections = JoinSet::new();
    let mut listener = TcpListener::from_std(listener).ok();
    loop {
        // A connection that comes while all are being closed is one of those.
        let Control {
            cut, generation, ..
        } = *control.borrow_and_update();
        if cut {
            listener = None;
        } else if listener.is_none() {
            listener = TcpListener::bind(addr).await.ok();
        }
        shared.listening.send_replace(listener.is_some());
        tokio::select! {
            biased;
            changed = control.changed() => if changed.is_err() { return },
            Some(_) = connections.join_next() => {}
            () = time::sleep(AGAIN), if listener.is_none() && !cut => {}
            accepted = next(listener.as_ref()), if listener.is_some() => match accepted {
                Ok((client, _)) => {
                    let nth = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
                    let open = connection::Open::count(&shared);
                    connections.spawn(connection::serve(client, (nth, generation), open));
                }
                Err(_) => time::sleep(AGAIN).await,
            },
        }
    }
}

async fn next(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}
