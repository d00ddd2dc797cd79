//! The subject of a message, by the way in which the store uses messages, so that a fault can be
//! aimed at one.

use prost::Message;

use crate::etcd::messages::{Request, TxnRequest};

/// The subject of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum About {
    Claim,
    Renew,
    Release,
    #[default]
    Look,
    Watch,
}

/// Returns the subject of a message of a call with this path, by the way in which the store uses
/// it.
pub(crate) fn about(path: &str, message: &[u8]) -> About {
    let writes = |is: fn(&Request) -> bool| {
        let txn = TxnRequest::decode(message).unwrap_or_default();
        txn.then
            .iter()
            .any(|op| op.request.as_ref().is_some_and(is))
    };
    match path.rsplit('/').next().unwrap_or_default() {
        "Watch" => About::Watch,
        "LeaseKeepAlive" => About::Renew,
        "LeaseGrant" => About::Claim,
        "LeaseRevoke" | "DeleteRange" => About::Release,
        "Txn" if writes(|it| matches!(it, Request::Delete(_) | Request::Txn(_))) => About::Release,
        "Txn" if writes(|it| matches!(it, Request::Put(_))) => About::Claim,
        "Txn" => About::Renew,
        _ => About::Look,
    }
}
