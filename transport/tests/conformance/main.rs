//! One suite for every link: what [`Link`](sealane_transport::Link) promises, and two sessions on top of it.
//!
//! `loopback` is the reference. `slow_*` wraps a link so that calls move nothing now and then; `failing_*` breaks it
//! as well, for the sessions to survive.

mod ends;
mod moved;
mod run;
#[path = "../sockets/mod.rs"]
mod sockets;

macro_rules! conforms {
    ($($link:ident),*: $suite:ident { $($property:ident),* $(,)? }) => {
        conforms!(@each [$($link),*] $suite [$($property),*]);
    };
    (@each [$($link:ident),*] $suite:ident $properties:tt) => {
        $(conforms!(@one $link $suite $properties);)*
    };
    (@one $link:ident $suite:ident [$($property:ident),*]) => {
        mod $link {
            $(#[test] fn $property() { crate::$suite::$property(crate::ends::$link) })*
        }
    };
}

conforms!(loopback, tcp, narrow_tcp, slow_loopback, slow_tcp: moved {
    order_is_kept_and_bytes_are_identical,
    what_was_held_back_leaves_with_the_next_write,
    payloads_of_every_size_arrive_whole,
    both_directions_at_once,
    a_full_pipe_holds_the_rest_back_until_it_is_read,
    closing_is_noticed_after_the_last_byte,
    writing_to_a_closed_end_fails,
    payloads_come_back_exactly_once,
    payloads_come_back_exactly_once_after_a_death,
    a_landing_under_way_is_given_up_whole,
    one_receive_keeps_to_its_budget,
    one_transmit_keeps_to_its_budget,
    bad_bytes_are_a_protocol_error,
});

mod sessions {
    conforms!(loopback, tcp, narrow_tcp, slow_loopback, slow_tcp, failing_loopback, failing_tcp: run {
        sessions_settle_everything,
    });
}
