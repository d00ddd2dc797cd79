//! The messages between etcd and its clients: the part of its protocol that the store uses.

use prost::{Enumeration, Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(uint64, tag = "1")]
    pub(crate) cluster: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) member: u64,
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(crate) created: i64,
    #[prost(int64, tag = "3")]
    pub(crate) modified: i64,
    #[prost(int64, tag = "4")]
    pub(crate) version: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    /// 0: a put; 1: a deletion.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
    #[prost(message, optional, tag = "3")]
    pub(crate) before: Option<KeyValue>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Enumeration)]
#[repr(i32)]
pub(crate) enum Order {
    None = 0,
    Ascending = 1,
    Descending = 2,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Enumeration)]
#[repr(i32)]
pub(crate) enum SortBy {
    Key = 0,
    Version = 1,
    Created = 2,
    Modified = 3,
    Value = 4,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "4")]
    pub(crate) revision: i64,
    #[prost(enumeration = "Order", tag = "5")]
    pub(crate) order: i32,
    #[prost(enumeration = "SortBy", tag = "6")]
    pub(crate) sort_by: i32,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
    #[prost(bool, tag = "9")]
    pub(crate) count_only: bool,
    #[prost(int64, tag = "10")]
    pub(crate) least_modified: i64,
    #[prost(int64, tag = "11")]
    pub(crate) most_modified: i64,
    #[prost(int64, tag = "12")]
    pub(crate) least_created: i64,
    #[prost(int64, tag = "13")]
    pub(crate) most_created: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
    #[prost(bool, tag = "4")]
    pub(crate) wants_before: bool,
    #[prost(bool, tag = "5")]
    pub(crate) same_value: bool,
    #[prost(bool, tag = "6")]
    pub(crate) same_lease: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(message, optional, tag = "2")]
    pub(crate) before: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) end: Vec<u8>,
    #[prost(bool, tag = "3")]
    pub(crate) wants_before: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub(crate) deleted: i64,
    #[prost(message, repeated, tag = "3")]
    pub(crate) before: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3, 4")]
    pub(crate) request: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Response {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    Delete(DeleteResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseOp {
    #[prost(oneof = "Response", tags = "1, 2, 3, 4")]
    pub(crate) response: Option<Response>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Enumeration)]
#[repr(i32)]
pub(crate) enum Relation {
    Equal = 0,
    Greater = 1,
    Less = 2,
    NotEqual = 3,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Against {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "5")]
    Created(i64),
    #[prost(int64, tag = "6")]
    Modified(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    #[prost(enumeration = "Relation", tag = "1")]
    pub(crate) relation: i32,
    /// The property of the key that is compared. 0: its version; 1: its create_revision; 2: its
    /// mod_revision; 3: its value; 4: its lease.
    #[prost(int32, tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) key: Vec<u8>,
    #[prost(oneof = "Against", tags = "4, 5, 6, 7, 8")]
    pub(crate) against: Option<Against>,
    #[prost(bytes = "vec", tag = "64")]
    pub(crate) end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) when: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) then: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) or_else: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CompactRequest {
    #[prost(int64, tag = "1")]
    pub(crate) revision: i64,
}

/// Any answer that has a header and nothing else.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Done {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
}

/// A request to grant a lease.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct GrantRequest {
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
}

/// The answer to a grant, and to a keep-alive.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

/// A keep-alive, or a revocation.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "OfWatch", tags = "1, 2, 3")]
    pub(crate) request: Option<OfWatch>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum OfWatch {
    #[prost(message, tag = "1")]
    Create(CreateRequest),
    #[prost(message, tag = "2")]
    Cancel(LeaseRequest),
    #[prost(message, tag = "3")]
    Progress(Done),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) from: i64,
    /// The events that are left out. 0: puts; 1: deletions.
    #[prost(int32, repeated, tag = "5")]
    pub(crate) filters: Vec<i32>,
    #[prost(bool, tag = "6")]
    pub(crate) wants_before: bool,
    #[prost(int64, tag = "7")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compacted: i64,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}
