//! The ZooKeeper store of Leasehold
