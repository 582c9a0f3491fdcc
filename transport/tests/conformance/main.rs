//! One suite for every link: what [`Link`](sealane_transport::Link) promises, and two sessions on top of it.
//!
//! `loopback` is the reference. `slow_*` wraps a link so that some calls move nothing; `failing_*` also breaks it, which the sessions must
//! survive.

mod ahead;
mod ends;
mod foreign;
#[path = "../sockets/greeted.rs"]
mod greeted;
mod moved;
mod run;
#[path = "../sockets/mod.rs"]
mod sockets;
mod verbs;

macro_rules! conforms {
    ($($link:ident),*: $suite:ident { $($property:ident),* $(,)? }) => {
        conforms!(@each [$($link),*] $suite [$($property),*]);
    };
    (@each [$($link:ident),*] $suite:ident $properties:tt) => {
        $(conforms!(@one $link $suite $properties);)*
    };
    (@one $link:ident $suite:ident [$($property:ident),*]) => {
        mod $link {
            $(#[test] fn $property() {
                crate::$suite::$property(crate::ends::$link);
                crate::verbs::end_test();
            })*
        }
    };
}

conforms!(loopback, tcp, narrow_tcp, tls, narrow_tls, slow_loopback, slow_tcp, slow_tls: moved {
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

// Left out for verbs: a full pipe, and the budget of a transmit, since any number of payloads is taken whole as long as there are transfers
// left, more than a socket holds (their limits are tested in `verbs/link/tests/`).
conforms!(
    verbs_write, verbs_read, verbs_write_dynamic, verbs_read_dynamic, verbs_write_without_windows,
    verbs_read_without_windows, tiny_verbs_write, tiny_verbs_read, slow_verbs_write, slow_verbs_read: moved {
    order_is_kept_and_bytes_are_identical,
    what_was_held_back_leaves_with_the_next_write,
    payloads_of_every_size_arrive_whole,
    both_directions_at_once,
    writing_to_a_closed_end_fails,
    payloads_come_back_exactly_once,
    payloads_come_back_exactly_once_after_a_death,
    one_receive_keeps_to_its_budget,
    bad_bytes_are_a_protocol_error,
});

conforms!(crowded_verbs: moved { as_many_links_as_a_port_has_carry });

// Left out where requests take time: whatever is in flight when an end is dropped ends with its queue pair.
mod closing {
    conforms!(verbs_write, verbs_read, verbs_write_without_windows: moved {
        a_landing_under_way_is_given_up_whole,
        closing_is_noticed_after_the_last_byte,
    });
}

mod devices {
    conforms!(
        loopback, tcp, narrow_tcp, tls, narrow_tls, slow_loopback, slow_tcp, slow_tls, verbs_write, verbs_read,
        verbs_write_dynamic, verbs_read_dynamic, verbs_write_without_windows, verbs_read_without_windows,
        tiny_verbs_write, tiny_verbs_read, slow_verbs_write, slow_verbs_read: run {
        device_memory_is_copied_at_each_end,
        exported_memory_is_reached_once_it_is_registered,
    });
}

mod early {
    conforms!(
        loopback, tcp, narrow_tcp, tls, narrow_tls, slow_loopback, slow_tcp, slow_tls, failing_loopback, failing_tcp,
        failing_tls, verbs_write, verbs_read, tiny_verbs_write, tiny_verbs_read, slow_verbs_write, slow_verbs_read,
        failing_verbs_write, failing_verbs_read, failing_tiny_verbs: ahead {
        what_is_sent_ahead_ends_once,
    });
}

mod sessions {
    conforms!(
        verbs_write, verbs_read, verbs_write_dynamic, verbs_read_dynamic, verbs_write_without_windows,
        verbs_read_without_windows, tiny_verbs_write, tiny_verbs_read, slow_verbs_write, slow_verbs_read,
        failing_verbs_write, failing_verbs_read, failing_tiny_verbs, failing_verbs_without_windows: run {
        sessions_settle_everything,
    });
    conforms!(
        loopback, tcp, narrow_tcp, tls, narrow_tls, slow_loopback, slow_tcp, slow_tls, failing_loopback, failing_tcp,
        failing_tls: run {
        sessions_settle_everything,
    });
}
