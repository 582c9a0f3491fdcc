//! Published tensors, pulled once and by plans.

use std::ptr::null_mut;

use sealane_c::*;

use crate::fixture::*;

fn pull(task: &Task, keys: &[&str], min_version: i64, timeout_ms: i64, ears: &[Ear]) {
    let keys: Vec<sealane_text> = keys.iter().map(|key| text(key)).collect();
    let contexts: Vec<_> = ears.iter().map(Ear::context).collect();
    let (start, count, contexts) = (keys.as_ptr(), keys.len(), contexts.as_ptr());
    // SAFETY: everything lives until the function returns, the ears longer.
    ok(unsafe {
        let received = Some(received as _);
        sealane_pull(task.0, text(PS), start, count, min_version, timeout_ms, received, contexts, null_mut())
    });
}

fn plan(task: &Task, keys: &[&str]) -> *mut sealane_plan {
    let keys: Vec<sealane_text> = keys.iter().map(|key| text(key)).collect();
    let mut plan = null_mut();
    // SAFETY: everything lives until the function returns.
    ok(unsafe { sealane_plan_open(task.0, text(PS), keys.as_ptr(), keys.len(), &mut plan) });
    plan
}

unsafe fn get<'a>(plan: *mut sealane_plan, index: usize) -> (i64, &'a [u8]) {
    let mut view = std::mem::MaybeUninit::uninit();
    // SAFETY: the plan is open, and no pull of it is started while the bytes are looked at.
    unsafe {
        ok(sealane_plan_get(plan, index, view.as_mut_ptr()));
        let view: sealane_view = view.assume_init();
        assert_eq!((view.meta.rank, *view.meta.dims), (1, view.bytes as u64));
        (view.version, std::slice::from_raw_parts(view.data.cast(), view.bytes))
    }
}

#[test]
fn what_is_published_is_pulled_with_its_version() {
    let World { ps, worker, .. } = &world();
    let large = vec![5; 10_000];
    ps.publish(3, &[("a", &[1, 2]), ("b", &large)]);
    let ears = [Ear::new(), Ear::new()];
    pull(worker, &["b", "a"], 3, 0, &ears);
    let [b, a] = ears.map(|ear| ear.tensor());
    assert_eq!((b.bytes(), b.view().version), (&large[..], 3));
    assert_eq!((a.bytes(), a.view().version), (&[1, 2][..], 3));
    // SAFETY: the text lives until the function returns.
    ok(unsafe { sealane_withdraw(ps.0, text("a")) });
    // The daemon reads records of different processes in no particular order.
    let each_ends_by_itself = (0..1000).any(|_| {
        let ears = [Ear::new(), Ear::new()];
        pull(worker, &["b", "a"], 3, 1, &ears);
        let [b, a] = ears.map(|ear| ear.told());
        assert_eq!(b.code, sealane_code::Ok);
        a.code == sealane_code::DeadlineExceeded
    });
    assert!(each_ends_by_itself, "what was withdrawn is still pulled");
}

#[test]
fn a_plan_pulls_again_and_again_one_pull_at_a_time() {
    let World { ps, worker, .. } = &world();
    let plan = plan(worker, &["a", "b"]);
    let pulled = Ear::new();
    // SAFETY: the plan is closed in the end, and nothing of it is used after that.
    unsafe {
        let again = |version| sealane_plan_pull(plan, version, 0, Some(done), pulled.context(), null_mut());
        let mut view = std::mem::MaybeUninit::uninit();
        refused(sealane_plan_get(plan, 0, view.as_mut_ptr()), sealane_code::InvalidArgument);
        for version in 1..20 {
            let small = [version as u8; 3];
            let large = vec![version as u8; 5000];
            ps.publish(version, &[("a", &small), ("b", &large)]);
            ok(again(version));
            pulled.ok();
            assert_eq!(get(plan, 0), (version, &small[..]));
            assert_eq!(get(plan, 1), (version, &large[..]));
        }
        ok(again(20));
        refused(again(20), sealane_code::InvalidArgument);
        refused(sealane_plan_get(plan, 0, view.as_mut_ptr()), sealane_code::InvalidArgument);
        ps.publish(20, &[("a", &[1]), ("b", &[2])]);
        pulled.ok();
        // The size has changed.
        assert_eq!((get(plan, 0), get(plan, 1)), ((20, &[1][..]), (20, &[2][..])));
        refused(sealane_plan_get(plan, 2, view.as_mut_ptr()), sealane_code::InvalidArgument);

        let mut call = null_mut();
        ok(sealane_plan_pull(plan, 21, 0, Some(done), pulled.context(), &mut call));
        ok(sealane_call_cancel(call));
        sealane_call_free(call);
        assert_eq!(pulled.told().code, sealane_code::Cancelled);
        ps.publish(21, &[("a", &[3]), ("b", &[4])]);
        ok(again(21));
        pulled.ok();
        assert_eq!(get(plan, 1), (21, &[4][..]), "a plan outlives a pull that was given up");

        ok(again(22));
        sealane_plan_close(plan);
        assert_eq!(pulled.told().code, sealane_code::Cancelled);
        pulled.nothing();
        sealane_plan_close(null_mut());
    }
}
