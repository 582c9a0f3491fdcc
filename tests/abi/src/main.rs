//! Compares `transport/src/verbs/ibverbs/sys/types.rs` with what `rdma-sys` generates from rdma-core's headers: each constant, each
//! field's place and, of what is made on our side, each size. Where they differ, this does not build.
//!
//!     cargo run --manifest-path tests/abi/Cargo.toml

#![allow(non_camel_case_types, dead_code)]

#[path = "../../../transport/src/verbs/ibverbs/sys/types.rs"]
mod ours;

use std::mem::offset_of;

use rdma_sys as theirs;

/// The fields of structures, each at the same place; those of `sized` are as large.
macro_rules! same {
    (sized { $($type:ident)* } $($of:ident { $($field:ident $(as $their:ident)?),* })*) => {
        $(
            const _: () = assert!(size_of::<ours::$type>() == size_of::<theirs::$type>(), stringify!($type));
            const _: () = assert!(align_of::<ours::$type>() == align_of::<theirs::$type>(), stringify!($type));
        )*
        $($(
            const _: () = assert!(
                offset_of!(ours::$of, $field) == same!(@offset $of, $field $(as $their)?),
                concat!(stringify!($of), ".", stringify!($field))
            );
        )*)*
    };
    (@offset $of:ident, $field:ident) => { offset_of!(theirs::$of, $field) };
    (@offset $of:ident, $field:ident as $their:ident) => { offset_of!(theirs::$of, $their) };
}

same! {
    sized {
        ibv_ah_attr ibv_async_event ibv_context_ops ibv_device_attr ibv_gid ibv_gid_entry ibv_global_route
        ibv_mw_bind_info ibv_port_attr ibv_qp_attr ibv_qp_cap ibv_qp_init_attr ibv_recv_wr
        ibv_send_wr ibv_sge ibv_srq_attr ibv_srq_init_attr ibv_wc
    }
    ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
    ibv_async_event { element, event_type }
    ibv_comp_channel { context, fd }
    ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors }
    ibv_context_ops { alloc_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send }
    ibv_cq { context, channel, cq_context, handle, cqe }
    ibv_device_attr { max_qp_wr, device_cap_flags, max_cqe, max_qp_rd_atom, max_qp_init_rd_atom, max_srq_wr, phys_port_cnt }
    ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
    ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
    ibv_mr { context, pd, addr, length, handle, lkey, rkey }
    ibv_mw { context, pd, rkey }
    ibv_mw_bind_info { mr, addr, length, mw_access_flags }
    ibv_pd { context }
    ibv_port_attr { state, active_mtu, gid_tbl_len, max_msg_sz, lid, link_layer }
    ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num }
    ibv_qp_attr {
        qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr, pkey_index, max_rd_atomic, max_dest_rd_atomic,
        min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry
    }
    ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    ibv_recv_wr { wr_id, next, sg_list, num_sge }
    ibv_send_wr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data as imm_data_invalidated_rkey_union, wr,
        remote_srqn as qp_type, bind_mw as bind_mw_tso_union
    }
    ibv_sge { addr, length, lkey }
    ibv_srq { context }
    ibv_srq_attr { max_wr, max_sge, srq_limit }
    ibv_srq_init_attr { srq_context, attr }
    ibv_wc { wr_id, status, opcode, byte_len, imm_data as imm_data_invalidated_rkey_union, qp_num }
}

// Of the unions of a work request, the kinds that are posted.
const _: () = assert!(size_of::<ours::ibv_send_wr_remote>() == size_of::<theirs::wr_t>());
const _: () = assert!(offset_of!(ours::ibv_send_wr_remote, rkey) == offset_of!(theirs::rdma_t, rkey));
const _: () = assert!(size_of::<ours::ibv_send_wr_bind>() == size_of::<theirs::bind_mw_t>());
const _: () = assert!(offset_of!(ours::ibv_send_wr_bind, rkey) == offset_of!(theirs::bind_mw_t, rkey));
const _: () = assert!(offset_of!(ours::ibv_send_wr_bind, bind_info) == offset_of!(theirs::bind_mw_t, bind_info));

/// Constants of the same value: of a module, of a bit set, or of an enumeration.
macro_rules! equal {
    ($($module:ident $kind:ident { $($name:ident),* })*) => {
        $($(const _: () = assert!(
            ours::$module::$name as u64 == equal!($kind $module, $name) as u64,
            stringify!($name)
        );)*)*
    };
    (module $module:ident, $name:ident) => { theirs::$module::$name };
    (bits $module:ident, $name:ident) => { theirs::$module::$name.0 };
    (variant $module:ident, $name:ident) => { theirs::$module::$name };
    (root $module:ident, $name:ident) => { theirs::$name };
}

equal! {
    ibv_access_flags bits { IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_MW_BIND }
    ibv_device_cap_flags bits { IBV_DEVICE_MEM_WINDOW_TYPE_2B }
    ibv_event_type variant {
        IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_DEVICE_FATAL,
        IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_LID_CHANGE, IBV_EVENT_SRQ_ERR, IBV_EVENT_QP_LAST_WQE_REACHED,
        IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE
    }
    ibv_mw_type module { IBV_MW_TYPE_2 }
    ibv_qp_attr_mask bits {
        IBV_QP_STATE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT,
        IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN
    }
    ibv_qp_state module { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR }
    ibv_qp_type module { IBV_QPT_RC }
    ibv_send_flags bits { IBV_SEND_SIGNALED, IBV_SEND_INLINE }
    ibv_wc_opcode module { IBV_WC_RECV_RDMA_WITH_IMM }
    ibv_wr_opcode module {
        IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_LOCAL_INV, IBV_WR_BIND_MW
    }
    link_layer root { IBV_LINK_LAYER_ETHERNET }
}

fn main() {
    println!("the declarations of libibverbs are those of rdma-core's headers");
}
