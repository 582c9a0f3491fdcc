//! Tests that hold for either executor: each is run on the one that this host chooses, which is io_uring's where that
//! can be used, and on epoll's.

/// Makes two tests of each function, which takes the executor.
macro_rules! on_each_executor {
    ($($test:ident,)*) => {
        mod auto {
            $(#[test]
            fn $test() {
                super::$test(sealane_runtime::ExecutorChoice::Auto);
            })*
        }

        mod epoll {
            $(#[test]
            fn $test() {
                super::$test(sealane_runtime::ExecutorChoice::Epoll);
            })*
        }
    };
}
