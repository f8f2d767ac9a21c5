//! Hosts in network namespaces on one machine.
