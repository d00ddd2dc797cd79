//! The suite against etcd.

fn main() {}
