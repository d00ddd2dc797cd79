//! After a reconnect each hold is compared with its queue. What is before it there, although it was
//! granted, is put there by hand.

use std::sync::Arc;

use crate::common::*;
use leasehold_core::Loss;
use leasehold_core::backend::{Backend, Claim, LeaseRef, Mode, Renewal};
use leasehold_testbed::Proxy;
use leasehold_zookeeper::ZooKeeper;
use zookeeper_client::{Client, CreateMode};

const DOWNGRADED: &[u8] = b"leasehold/1 shared\nlabel";

async fn held(client: &ZooKeeper, claims: impl IntoIterator<Item = Claim>) -> Vec<LeaseRef> {
    let mut leases = Vec::new();
    for claim in claims {
        let grant = granted(client, &claim).await;
        assert!(
            !grant.place.as_str().ends_with("-0000000000"),
            "nothing can be before it"
        );
        leases.push(LeaseRef::new(
            Arc::new(claim),
            grant.place,
            Some(grant.token),
        ));
    }
    leases
}

#[tokio::test]
async fn who_is_before_a_hold_keeps_it_out_as_the_modes_say() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (client, raw) = (
            at(proxy.addr()).await,
            Client::connect(server.addr()).await.unwrap(),
        );
        let permit = Mode::Permits { n: 1, of: 2 };
        // What comes before them, what its node contains, who holds, and how many of the first of
        // these stay.
        let cases = [
            ("lock-", &b""[..], vec![Mode::Exclusive], 0),
            ("lock-", b"", vec![Mode::Shared; 2], 0),
            ("lock-", DOWNGRADED, vec![Mode::Shared; 2], 2),
            ("shared-lock-", b"", vec![Mode::Shared; 2], 2),
            ("shared-lock-", b"", vec![Mode::Exclusive], 0),
            ("1of2-lock-", b"", vec![permit; 2], 1),
            ("1of2-lock-", b"", vec![Mode::Shared], 0),
        ];
        let (mut leases, mut stay) = (Vec::new(), Vec::new());
        for (nth, (ending, data, modes, kept)) in cases.into_iter().enumerate() {
            let lock = nth.to_string();
            let first = first_of(&raw, &lock, ending).await;
            stay.extend((0..modes.len()).map(|hold| hold < kept));
            leases.extend(held(&client, modes.into_iter().map(|mode| of_mode(mode, &lock))).await);
            raw.create(&first, data, &anybodys(CreateMode::Ephemeral))
                .await
                .unwrap();
        }
        proxy.disconnect().await;
        until(|| async {
            let renewed = client.renew(&leases).await.unwrap();
            renewed.iter().zip(&stay).all(|(renewed, stays)| {
                match renewed {
                    Renewal::Renewed(_) => assert!(stays, "somebody is before it: {renewed:?}"),
                    Renewal::Lost(Loss::Gone) => {
                        assert!(!stays, "nobody keeps it out: {renewed:?}");
                    }
                    _ => return false,
                }
                true
            })
        })
        .await;
    })
    .await;
}
