//! The RDMA ports that tests run on.
//!
//! Opens devices to see what there is.

use dogwild_net::verbs;

/// The RDMA ports to test on: the active ones, or those that DOGWILD_VERBS_PORTS names (one for
/// each node). Where there are fewer than `least`, says where the test does run.
pub(crate) fn rdma_ports(least: usize) -> Option<Vec<String>> {
    let named = std::env::var("DOGWILD_VERBS_PORTS").ok();
    let ports = match named {
        Some(names) => Ok(names.split(',').map(str::to_owned).collect()),
        None => verbs::ports().map(|ports| {
            let usable = ports.iter().filter(|port| port.trouble().is_none());
            usable
                .map(|port| format!("{}:{}", port.device, port.number))
                .collect()
        }),
    };
    let why = match ports {
        Ok(ports) if Vec::len(&ports) >= least => return Some(ports),
        Ok(ports) => format!("{least} active RDMA ports, there are {}", ports.len()),
        Err(error) => error.to_string(),
    };
    dogwild_lab::skip::elsewhere(&why, "in the machine of tools/tests/soft_roce.rs");
    None
}
