//! One set of checks (`suite/checks.rs`) that every transport passes, plain and under
//! each wrapper, set so that it changes nothing. Transports of the system under wrappers are long
//! tests (`cargo xtask check --all`): wrappers and transports meet in one trait only. So are
//! variants of a transport that has a quick one.
//!
//! `transport!` makes one test per check; the name says which transport: `cargo test -p dogwild-net
//! --test conformance udp_lo`. Those between hosts of a lab re-run themselves in a user namespace
//! for ordinary users and are skipped, loudly, where the kernel forbids that.

mod suite;

/// A test, or one that only `cargo xtask check --all` runs.
macro_rules! test_of {
    (quick, $name:ident, $body:block) => {
        #[test]
        fn $name() $body
    };
    (long, $name:ident, $body:block) => {
        #[test]
        #[ignore = "long: every transport, and under every wrapper"]
        fn $name() $body
    };
}

macro_rules! transport {
    ($name:ident, $make:expr, lab: $lab:tt, plain: $plain:ident, wrapped: $length:ident) => {
        mod $name {
            transport!(@plain $plain, $make, $lab, $length,
                group_reaches_all_but_the_sender,
                node_reaches_that_node_alone,
                every_length_arrives_whole,
                too_long_is_refused,
                random_frames_arrive_intact,
                equal_frames_arrive_intact,
                an_overrun_is_counted_and_passes,
                both_ways_at_once,
                a_node_starts_again,
                the_interface_goes_down_and_up,
                wait_times_out_and_wakes,
                addresses_are_learnt,
                lent_words_arrive,
            );
        }
    };
    (@plain $plain:ident, $make:expr, $lab:tt, $length:ident, $($check:ident),* $(,)?) => {
        $(
            test_of!($plain, $check, {
                transport!(@enter $lab);
                crate::suite::checks::$check(&$make);
            });
        )*
        transport!(@under under_fault, Fault, $make, $lab, $length, $($check),*);
        transport!(@under under_capture, Capture, $make, $lab, $length, $($check),*);
        transport!(@under under_seal, Seal, $make, $lab, $length, $($check),*);
        transport!(@under under_pace, Pace, $make, $lab, $length, $($check),*);
        transport!(@under under_all, All, $make, $lab, $length, $($check),*);
    };
    (@under $module:ident, $wrapping:ident, $make:expr, $lab:tt, $length:ident, $($check:ident),*) => {
        mod $module {
            $(
                test_of!($length, $check, {
                    transport!(@enter $lab);
                    let wrapping = crate::suite::Wrapping::$wrapping;
                    crate::suite::checks::$check(&$make.under(wrapping));
                });
            )*
        }
    };
    (@enter xdp) => {
        dogwild_lab::enter_or_return!();
        if !crate::suite::may_load_programs() {
            return;
        }
    };
    (@enter (ports $least:literal)) => {
        if crate::suite::rdma_ports($least).is_none() {
            return;
        }
    };
    (@enter true) => { dogwild_lab::enter_or_return!(); };
    (@enter false) => {};
}

transport!(memory_2, crate::suite::Net::memory(2), lab: false, plain: quick, wrapped: quick);
transport!(memory_5, crate::suite::Net::memory(5), lab: false, plain: quick, wrapped: long);
transport!(udp_lo, crate::suite::Net::udp_loopback(2, true), lab: false, plain: quick, wrapped: long);
transport!(udp_lo_unsegmented, crate::suite::Net::udp_loopback(3, false), lab: false, plain: long, wrapped: long);
transport!(udp_veth, crate::suite::Net::udp_lab(2, true), lab: true, plain: long, wrapped: long);
transport!(udp_veth_unsegmented, crate::suite::Net::udp_lab(2, false), lab: true, plain: long, wrapped: long);
transport!(udp_bridge, crate::suite::Net::udp_lab(3, true), lab: true, plain: quick, wrapped: long);
transport!(packet_mmap_veth, crate::suite::Net::packet_mmap_lab(2, 1500), lab: true, plain: quick, wrapped: long);
transport!(packet_mmap_jumbo, crate::suite::Net::packet_mmap_lab(2, 9000), lab: true, plain: long, wrapped: long);
transport!(packet_mmap_bridge, crate::suite::Net::packet_mmap_lab(3, 1500), lab: true, plain: long, wrapped: long);
transport!(af_xdp_veth, crate::suite::Net::af_xdp_lab(2, 1500), lab: xdp, plain: quick, wrapped: long);
transport!(af_xdp_largest, crate::suite::Net::af_xdp_lab(2, 3506), lab: xdp, plain: long, wrapped: long);
transport!(af_xdp_generic, crate::suite::Net::af_xdp_generic_lab(2), lab: xdp, plain: long, wrapped: long);
transport!(af_xdp_bridge, crate::suite::Net::af_xdp_lab(3, 1500), lab: xdp, plain: long, wrapped: long);
transport!(xdp_mmap_veth, crate::suite::Net::xdp_mmap_lab(2, 1500), lab: true, plain: quick, wrapped: long);
transport!(xdp_mmap_bridge, crate::suite::Net::xdp_mmap_lab(3, 3506), lab: true, plain: long, wrapped: long);
transport!(verbs_one_port, crate::suite::verbs_net(3, 1), lab: (ports 1), plain: quick, wrapped: long);
transport!(verbs_two_ports, crate::suite::verbs_net(2, 2), lab: (ports 2), plain: quick, wrapped: long);
