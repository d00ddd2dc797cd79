//! The fault proxy as the conformance suite's way to another server.

use std::{any::Any, fmt, sync::Arc};

use async_trait::async_trait;
use leasehold_core::backend::Backend;

use crate::{Proxy, error::Result};

/// A proxy before two servers: it leads to the first one until it is told otherwise.
pub struct Detour {
    proxies: Vec<Proxy>,
    /// The addresses behind each proxy: of the first server, and of the other one.
    ways: Vec<[String; 2]>,
    elsewhere: Arc<dyn Backend>,
    _other: Box<dyn Any + Send + Sync>,
}

impl Detour {
    /// Starts a proxy for each of these pairs of addresses. `other` is the other server, which runs as
    /// long as this value lives, and `elsewhere` a client of it.
    pub async fn between(
        ways: Vec<[String; 2]>,
        elsewhere: Arc<dyn Backend>,
        other: impl Any + Send + Sync,
    ) -> Result<Self> {
        let mut proxies = Vec::new();
        for [here, _] in &ways {
            proxies.push(Proxy::to(here).await?);
        }
        Ok(Self {
            proxies,
            ways,
            elsewhere,
            _other: Box::new(other),
        })
    }

    /// The addresses to which clients connect, one for each pair.
    #[must_use]
    pub fn addrs(&self) -> Vec<&str> {
        self.proxies.iter().map(Proxy::addr).collect()
    }

    async fn lead(&self, to: usize) {
        for (proxy, way) in self.proxies.iter().zip(&self.ways) {
            proxy.cut().await;
            proxy.lead_to(&*way[to]);
        }
        for proxy in &self.proxies {
            proxy.heal().await;
        }
    }
}

impl fmt::Debug for Detour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detour")
            .field("ways", &self.ways)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl leasehold_conformance::Detour for Detour {
    async fn lead_away(&self) {
        self.lead(1).await;
    }
    async fn lead_back(&self) {
        self.lead(0).await;
    }
    async fn elsewhere(&self) -> Arc<dyn Backend> {
        self.elsewhere.clone()
    }
}
