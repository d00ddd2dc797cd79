//! `release` and `release_after`.

pub(crate) mod repeat;

use std::sync::Arc;
use std::time::Duration;

use crate::link::{Call, Connection, Inbox, Names, granted_ttl};
use leasehold_core::backend::{Claim, ClaimId};
use leasehold_core::{Name, Result};

use crate::Redis;
use crate::client::nodes::Nodes;
use crate::release::repeat::Releases;
use crate::scripts::{RELEASE, RELEASE_AFTER, on};

impl Redis {
    pub(crate) fn releases(nodes: &Arc<Nodes>, names: &Names, inbox: &Inbox) -> Releases {
        Releases::new(nodes, names, &inbox.replaced, release_call)
    }

    pub(crate) async fn release(&self, claim: &Claim) -> Result<()> {
        let mut server = None;
        let call = |to: &Connection| {
            server = Some(to.server()?);
            Ok(release_call(
                &self.nodes,
                &self.names.lock(&claim.name),
                claim.id,
            ))
        };
        self.run(&claim.name, call).await?;
        server
            .into_iter()
            .for_each(|server| self.releases.remember(claim, server));
        Ok(())
    }

    /// Goes on admitting the waiters by releasing an unknown claim. The next request for the name
    /// would do it, too.
    pub(crate) async fn admit(&self, name: &Name) {
        let nobody = ClaimId::fresh();
        let _ = self
            .run(name, |_| {
                Ok(release_call(&self.nodes, &self.names.lock(name), nobody))
            })
            .await;
    }

    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        let rest = granted_ttl(rest, Duration::from_millis(1));
        let call = |_: &Connection| Ok(self.call(&RELEASE_AFTER, claim).arg(rest.as_millis()));
        self.run(&claim.name, call).await.map(drop)
    }
}

/// A call that releases a claim. Its argument is `-` and the id: the record of the lock begins with
/// these if there are neither waiters nor observers.
fn release_call(nodes: &Nodes, lock: &str, id: ClaimId) -> Call {
    on(nodes, &RELEASE, &[lock.to_owned()]).arg(format_args!("-{id}"))
}
