//! The suite against zookeeper.

fn main() {}
