; One pool of threads for the parallel loops of all kernels, whichever thread calls them.
;
; A parallel loop is `count` tasks of one function. The caller puts them up and takes part itself; whoever is free takes
; the next one. While the pool is at work for one caller, another does its tasks alone, which costs less than taking
; turns, and cannot wait for itself. Workers that find nothing yield the processor for a while, and then sleep. They are
; woken on other CPUs than the caller's.

%group = type { ptr, i32 } ; TVMParallelGroupEnv: for barriers, which our loops do not have, and the number of tasks

; Bits 32 to 63: the number of the loop. Bits 16 to 31: its tasks. Bits 0 to 15: how many of them have been taken.
; In one word, so that nobody takes a task of a loop that has ended.
@ticket = internal global i64 0, align 128
@unfinished = internal global i32 0, align 128
@is_busy = internal global i32 0, align 128
@sleeping = internal global i32 0, align 128
@function = internal global ptr null
@data = internal global ptr null
@group = internal global %group zeroinitializer
@has_failed = internal global i32 0
@error = internal global ptr null

@is_running = internal global i32 0
@threads = internal global i32 1
@spins = internal global i32 0
@mutex = internal global [256 x i8] zeroinitializer, align 64
@wake = internal global [256 x i8] zeroinitializer, align 64

; The thread of a worker, whether it sleeps, which changes under the mutex, whether its affinity lacks the CPU of the caller,
; and its affinity without that. There are 32; all further workers share the last, which nobody reads.
%worker = type { ptr, i8, i8, i1024 }
@workers = internal global [33 x %worker] zeroinitializer, align 64
; Functions of the C library: the CPU of this thread, and the affinity of a thread. Null where there are none.
@current_cpu = internal global ptr null
@get_affinity = internal global ptr null
@set_affinity = internal global ptr null

; Functions of TVM's FFI, which is not linked with this.
@move_from_raised = internal global ptr null
@set_raised = internal global ptr null
@release = internal global ptr null
@set_raised_text = internal global ptr null
@kind = internal constant [12 x i8] c"MemoryError\00"
@text = internal constant [15 x i8] c"std::bad_alloc\00"

@main_thread = internal global i64 0

; Looks for signals. Only one thread of Python hears them, and it should not wait for Python's lock often.
@check_signals = internal global ptr null
@listener = internal global i64 0
@listened = internal global i64 0 ; when, in milliseconds
@kind_set = internal constant [19 x i8] c"EnvErrorAlreadySet\00" ; the FFI's name for an exception that Python has
@text_set = internal constant [1 x i8] c"\00"

; What kernels of that thread have allocated: an exception ends them before they free it. Handlers may call kernels, too:
; theirs come after the first so many.
@allocate = internal global ptr null
@free = internal global ptr null
@held = internal global [64 x ptr] zeroinitializer
@held_count = internal global i32 0
@held_before = internal global i32 0

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()
declare i64 @pthread_self()
declare i32 @clock_gettime(i32, ptr)
declare i32 @pause()
declare void @abort()
declare ptr @_ZSt13set_terminatePFvvE(ptr)
declare i32 @__gxx_personality_v0(...)
declare ptr @__cxa_begin_catch(ptr)
declare void @__cxa_end_catch()
declare i32 @llvm.umin.i32(i32, i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal i1 @has_tasks(i64 %ticket) {
  %taken = and i64 %ticket, 65535
  %shifted = lshr i64 %ticket, 16
  %count = and i64 %shifted, 65535
  %has = icmp ult i64 %taken, %count
  ret i1 %has
}

; Runs tasks until all of them have been taken.
define internal void @work() personality ptr @__gxx_personality_v0 {
  br label %look
look:
  %ticket = load atomic i64, ptr @ticket acquire, align 8
  %has = call i1 @has_tasks(i64 %ticket)
  br i1 %has, label %take, label %done
take:
  ; Of the next loop, perhaps; but then the ticket is another.
  %function = load atomic ptr, ptr @function monotonic, align 8
  %data = load atomic ptr, ptr @data monotonic, align 8
  %next = add i64 %ticket, 1
  %exchanged = cmpxchg ptr @ticket, i64 %ticket, i64 %next acq_rel acquire, align 8
  %is_mine = extractvalue { i64, i1 } %exchanged, 1
  br i1 %is_mine, label %run, label %look
run:
  %low = trunc i64 %ticket to i32
  %task = and i32 %low, 65535
  %code = invoke i32 %function(i32 %task, ptr @group, ptr %data) to label %ran unwind label %thrown
ran:
  %is_right = icmp eq i32 %code, 0
  br i1 %is_right, label %finish, label %fail
thrown:
  ; TVM throws where there is no memory for a workspace.
  %caught = landingpad { ptr, i32 } catch ptr null
  %exception = extractvalue { ptr, i32 } %caught, 0
  %object = call ptr @__cxa_begin_catch(ptr %exception)
  call void @__cxa_end_catch()
  br label %fail
fail:
  call void @keep_error()
  br label %finish
finish:
  %before = atomicrmw sub ptr @unfinished, i32 1 acq_rel, align 4
  br label %look
done:
  ret void
}

; Errors belong to the thread that raised them: the first one is kept for the caller.
define internal void @keep_error() {
  %place = alloca ptr
  store ptr null, ptr %place
  %move = load ptr, ptr @move_from_raised
  call void %move(ptr %place)
  %error = load ptr, ptr %place
  %is_none = icmp eq ptr %error, null
  br i1 %is_none, label %note, label %keep
keep:
  %exchanged = cmpxchg ptr @error, ptr null, ptr %error acq_rel acquire, align 8
  %is_first = extractvalue { ptr, i1 } %exchanged, 1
  br i1 %is_first, label %note, label %drop
drop:
  %release = load ptr, ptr @release
  %ignored = call i32 %release(ptr %error)
  br label %note
note:
  store atomic i32 1, ptr @has_failed release, align 4
  ret void
}

define internal ptr @worker_at(i32 %i) {
  %slot = call i32 @llvm.umin.i32(i32 %i, i32 32)
  %worker = getelementptr [33 x %worker], ptr @workers, i32 0, i32 %slot
  ret ptr %worker
}

; Takes the caller's CPU out of the affinities of sleeping workers until they have been woken. Linux often wakes a thread on
; the CPU of the one that wakes it though others are idle, since those of a virtual machine seem taken; then the two share
; one CPU for 10 milliseconds.
define internal void @avoid_cpu_of_caller() {
begin:
  %others = alloca i1024, align 64
  %current = load ptr, ptr @current_cpu
  %get = load ptr, ptr @get_affinity
  %set = load ptr, ptr @set_affinity
  %is_unknown = icmp eq ptr %current, null
  br i1 %is_unknown, label %done, label %first
first:
  %cpu = call i32 %current()
  %is_far = icmp ugt i32 %cpu, 1023
  %cpu_wide = zext i32 %cpu to i1024
  %bit = shl i1024 1, %cpu_wide
  %mask = xor i1024 %bit, -1
  %threads = load i32, ptr @threads
  %workers = sub i32 %threads, 1
  %few = call i32 @llvm.umin.i32(i32 %workers, i32 32)
  %count = select i1 %is_far, i32 0, i32 %few
  br label %next
next:
  %i = phi i32 [ 0, %first ], [ %i_next, %rest ]
  %more = icmp ult i32 %i, %count
  br i1 %more, label %look, label %done
look:
  %self = call ptr @worker_at(i32 %i)
  %thread = load ptr, ptr %self
  %asleep_at = getelementptr %worker, ptr %self, i32 0, i32 1
  %avoids_at = getelementptr %worker, ptr %self, i32 0, i32 2
  %affinity_at = getelementptr %worker, ptr %self, i32 0, i32 3
  %asleep = load i8, ptr %asleep_at
  %is_asleep = icmp ne i8 %asleep, 0
  br i1 %is_asleep, label %ask, label %rest
ask:
  store i1024 0, ptr %affinity_at
  %got = call i32 %get(ptr %thread, i64 128, ptr %affinity_at)
  %has = icmp eq i32 %got, 0
  br i1 %has, label %reduce, label %rest
reduce:
  %affinity = load i1024, ptr %affinity_at
  %reduced = and i1024 %affinity, %mask
  store i1024 %reduced, ptr %others
  %is_empty = icmp eq i1024 %reduced, 0
  br i1 %is_empty, label %rest, label %avoid
avoid:
  %code = call i32 %set(ptr %thread, i64 128, ptr %others)
  store i8 1, ptr %avoids_at
  br label %rest
rest:
  %i_next = add i32 %i, 1
  br label %next
done:
  ret void
}

; Undoes that: a worker that has been woken stays on its CPU, but may use all of them.
define internal void @restore_affinities() {
begin:
  %set = load ptr, ptr @set_affinity
  %threads = load i32, ptr @threads
  %workers = sub i32 %threads, 1
  %count = call i32 @llvm.umin.i32(i32 %workers, i32 32)
  br label %next
next:
  %i = phi i32 [ 0, %begin ], [ %i_next, %rest ]
  %more = icmp ult i32 %i, %count
  br i1 %more, label %look, label %done
look:
  %self = call ptr @worker_at(i32 %i)
  %avoids_at = getelementptr %worker, ptr %self, i32 0, i32 2
  %avoids = load i8, ptr %avoids_at
  %is_reduced = icmp ne i8 %avoids, 0
  br i1 %is_reduced, label %restore, label %rest
restore:
  store i8 0, ptr %avoids_at
  %thread = load ptr, ptr %self
  %affinity_at = getelementptr %worker, ptr %self, i32 0, i32 3
  %code = call i32 %set(ptr %thread, i64 128, ptr %affinity_at)
  br label %rest
rest:
  %i_next = add i32 %i, 1
  br label %next
done:
  ret void
}

define internal ptr @worker(ptr %self) {
begin:
  %asleep_at = getelementptr %worker, ptr %self, i32 0, i32 1
  %spins = load i32, ptr @spins
  br label %spin
spin:
  %i = phi i32 [ 0, %begin ], [ 0, %found ], [ 0, %awake ], [ %i_next, %yield ]
  %seen = load atomic i64, ptr @ticket acquire, align 8
  %has = call i1 @has_tasks(i64 %seen)
  br i1 %has, label %found, label %none
found:
  call void @work()
  br label %spin
none:
  %go_on = icmp ult i32 %i, %spins
  br i1 %go_on, label %yield, label %sleep
yield:
  %yielded = call i32 @sched_yield()
  %i_next = add i32 %i, 1
  br label %spin
sleep:
  ; Who puts up tasks looks at the sleepers after it, and who goes to sleep at the tasks after saying so.
  %locked = call i32 @pthread_mutex_lock(ptr @mutex)
  %awake_before = atomicrmw add ptr @sleeping, i32 1 seq_cst, align 4
  br label %asleep
asleep:
  %now = load atomic i64, ptr @ticket seq_cst, align 8
  %has_now = call i1 @has_tasks(i64 %now)
  br i1 %has_now, label %awake, label %wait
wait:
  store i8 1, ptr %asleep_at
  %waited = call i32 @pthread_cond_wait(ptr @wake, ptr @mutex)
  store i8 0, ptr %asleep_at
  br label %asleep
awake:
  %asleep_before = atomicrmw sub ptr @sleeping, i32 1 seq_cst, align 4
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %spin
}

; Where a thread cannot be started, the others do its work.
define internal void @start() {
begin:
  %threads = load i32, ptr @threads
  %mutex = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %wake = call i32 @pthread_cond_init(ptr @wake, ptr null)
  store i32 1, ptr @is_running
  br label %next
next:
  %i = phi i32 [ 1, %begin ], [ %i_next, %started ]
  %at = sub i32 %i, 1
  %self = call ptr @worker_at(i32 %at)
  %code = call i32 @pthread_create(ptr %self, ptr null, ptr @worker, ptr %self)
  %is_there = icmp eq i32 %code, 0
  br i1 %is_there, label %detach, label %done
detach:
  %id = load ptr, ptr %self
  %detached = call i32 @pthread_detach(ptr %id)
  br label %started
started:
  %i_next = add i32 %i, 1
  %more = icmp ult i32 %i_next, %threads
  br i1 %more, label %next, label %done
done:
  ret void
}

define internal i32 @alone(ptr %function, ptr %data, i32 %count) {
begin:
  %group = alloca %group
  %counter = alloca [16 x i32]
  store [16 x i32] zeroinitializer, ptr %counter
  store ptr %counter, ptr %group
  %place = getelementptr %group, ptr %group, i32 0, i32 1
  store i32 %count, ptr %place
  br label %next
next:
  %i = phi i32 [ 0, %begin ], [ %i_next, %right ]
  %code = call i32 %function(i32 %i, ptr %group, ptr %data)
  %is_right = icmp eq i32 %code, 0
  br i1 %is_right, label %right, label %done
right:
  %i_next = add i32 %i, 1
  %more = icmp slt i32 %i_next, %count
  br i1 %more, label %next, label %done
done:
  ret i32 %code
}

define internal i1 @is_listener() {
  %me = call i64 @pthread_self()
  %listener = load i64, ptr @listener
  %is = icmp eq i64 %me, %listener
  ret i1 %is
}

; TVMBackendAllocWorkspace
define internal ptr @allocate_noted(i32 %device, i32 %number, i64 %bytes, i32 %code, i32 %bits) {
begin:
  %function = load ptr, ptr @allocate
  %memory = call ptr %function(i32 %device, i32 %number, i64 %bytes, i32 %code, i32 %bits)
  %hears = call i1 @is_listener()
  %count = load i32, ptr @held_count
  %has_room = icmp ult i32 %count, 64
  %is_noted = and i1 %hears, %has_room
  br i1 %is_noted, label %note, label %end
note:
  %place = getelementptr [64 x ptr], ptr @held, i32 0, i32 %count
  store ptr %memory, ptr %place
  %more = add i32 %count, 1
  store i32 %more, ptr @held_count
  br label %end
end:
  ret ptr %memory
}

; TVMBackendFreeWorkspace
define internal i32 @free_noted(i32 %device, i32 %number, ptr %memory) {
begin:
  %hears = call i1 @is_listener()
  br i1 %hears, label %first, label %end
first:
  %count = load i32, ptr @held_count
  br label %look
look:
  %i = phi i32 [ %count, %first ], [ %at, %next ]
  %none = icmp eq i32 %i, 0
  br i1 %none, label %end, label %next
next:
  %at = sub i32 %i, 1
  %place = getelementptr [64 x ptr], ptr @held, i32 0, i32 %at
  %other = load ptr, ptr %place
  %is_this = icmp eq ptr %other, %memory
  br i1 %is_this, label %forget, label %look
forget:
  %fewer = sub i32 %count, 1
  %last_place = getelementptr [64 x ptr], ptr @held, i32 0, i32 %fewer
  %last = load ptr, ptr %last_place
  store ptr %last, ptr %place
  store i32 %fewer, ptr @held_count
  br label %end
end:
  %function = load ptr, ptr @free
  %freed = call i32 %function(i32 %device, i32 %number, ptr %memory)
  ret i32 %freed
}

; For kernels that will not do it, on the CPU, which is device 1 of number 0.
define internal void @free_held() {
begin:
  %first = load i32, ptr @held_before
  br label %look
look:
  %count = load i32, ptr @held_count
  %more = icmp ugt i32 %count, %first
  br i1 %more, label %next, label %end
next:
  %fewer = sub i32 %count, 1
  store i32 %fewer, ptr @held_count
  %place = getelementptr [64 x ptr], ptr @held, i32 0, i32 %fewer
  %memory = load ptr, ptr %place
  %function = load ptr, ptr @free
  %freed = call i32 %function(i32 1, i32 0, ptr %memory)
  br label %look
end:
  ret void
}

; Runs Python's handlers of signals that have come, at most every 100 milliseconds, if this is the thread for that.
; Returns -1 if one of them has raised an exception.
define internal i32 @listen() {
begin:
  %time = alloca { i64, i64 }
  %hears = call i1 @is_listener()
  br i1 %hears, label %look, label %right
look:
  ; The sixth clock is monotonic: on Linux the coarse one, on macOS the only one.
  %told = call i32 @clock_gettime(i32 6, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr { i64, i64 }, ptr %time, i32 0, i32 1
  %rest = load i64, ptr %rest_at
  %whole = mul i64 %seconds, 1000
  %part = sdiv i64 %rest, 1000000
  %now = add i64 %whole, %part
  %last = load i64, ptr @listened
  %passed = sub i64 %now, %last
  %is_due = icmp sge i64 %passed, 100
  br i1 %is_due, label %check, label %right
check:
  store i64 %now, ptr @listened
  %function = load ptr, ptr @check_signals
  %before = load i32, ptr @held_before
  %count = load i32, ptr @held_count
  store i32 %count, ptr @held_before
  %code = call i32 %function()
  store i32 %before, ptr @held_before
  %is_quiet = icmp eq i32 %code, 0
  br i1 %is_quiet, label %right, label %interrupted
right:
  ret i32 0
interrupted:
  call void @free_held()
  %set_text = load ptr, ptr @set_raised_text
  call void %set_text(ptr @kind_set, ptr @text_set)
  ret i32 -1
}

; TVMBackendParallelLaunch: `wanted` is the number of tasks, or 0 for as many as there are threads.
; A loop that has no data does nothing: it is there to look for signals.
define internal i32 @launch(ptr %function, ptr %data, i32 %wanted) {
listen:
  %heard = call i32 @listen()
  %is_interrupted = icmp ne i32 %heard, 0
  %is_empty = icmp eq ptr %data, null
  %is_over = or i1 %is_interrupted, %is_empty
  br i1 %is_over, label %over, label %begin
over:
  ret i32 %heard
begin:
  %threads = load i32, ptr @threads
  %any = icmp eq i32 %wanted, 0
  %count = select i1 %any, i32 %threads, i32 %wanted
  %fewest = select i1 %any, i32 1, i32 %wanted
  %is_one = icmp eq i32 %count, 1
  %is_single = icmp eq i32 %threads, 1
  %is_many = icmp ugt i32 %count, 65535
  %not_here = or i1 %is_one, %is_single
  %not_so = or i1 %not_here, %is_many
  br i1 %not_so, label %by_itself, label %ask
ask:
  %exchanged = cmpxchg ptr @is_busy, i32 0, i32 1 acq_rel acquire, align 4
  %is_mine = extractvalue { i32, i1 } %exchanged, 1
  br i1 %is_mine, label %together, label %by_itself
by_itself:
  %code = call i32 @alone(ptr %function, ptr %data, i32 %fewest)
  ret i32 %code
together:
  %running = load i32, ptr @is_running
  %is_running = icmp ne i32 %running, 0
  br i1 %is_running, label %put_up, label %first
first:
  call void @start()
  br label %put_up
put_up:
  store atomic ptr %function, ptr @function monotonic, align 8
  store atomic ptr %data, ptr @data monotonic, align 8
  %place = getelementptr %group, ptr @group, i32 0, i32 1
  store i32 %count, ptr %place
  store atomic i32 %count, ptr @unfinished monotonic, align 4
  %last = load atomic i64, ptr @ticket monotonic, align 8
  %number = lshr i64 %last, 32
  %number_next = add i64 %number, 1
  %high = shl i64 %number_next, 32
  %count_wide = zext i32 %count to i64
  %middle = shl i64 %count_wide, 16
  %ticket = or i64 %high, %middle
  store atomic i64 %ticket, ptr @ticket seq_cst, align 8
  %sleeping = load atomic i32, ptr @sleeping seq_cst, align 4
  %nobody = icmp eq i32 %sleeping, 0
  br i1 %nobody, label %take_part, label %call
call:
  %locked = call i32 @pthread_mutex_lock(ptr @mutex)
  call void @avoid_cpu_of_caller()
  %called = call i32 @pthread_cond_broadcast(ptr @wake)
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mutex)
  ; Only now: a worker may have waited for the mutex.
  call void @restore_affinities()
  br label %take_part
take_part:
  call void @work()
  br label %wait
wait:
  %left = load atomic i32, ptr @unfinished acquire, align 4
  %is_done = icmp eq i32 %left, 0
  br i1 %is_done, label %done, label %yield
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
done:
  %failed = load atomic i32, ptr @has_failed acquire, align 4
  %error = load ptr, ptr @error
  store i32 0, ptr @has_failed
  store ptr null, ptr @error
  store atomic i32 0, ptr @is_busy release, align 4
  %is_right = icmp eq i32 %failed, 0
  br i1 %is_right, label %right, label %wrong
right:
  ret i32 0
wrong:
  %is_unknown = icmp eq ptr %error, null
  br i1 %is_unknown, label %no_memory, label %raise
no_memory:
  %set_text = load ptr, ptr @set_raised_text
  call void %set_text(ptr @kind, ptr @text)
  br label %end
raise:
  %set = load ptr, ptr @set_raised
  call void %set(ptr %error)
  %release = load ptr, ptr @release
  %released = call i32 %release(ptr %error)
  br label %end
end:
  ret i32 -1
}

; From here on for Python, by the calling convention of TVM's FFI: the third word of an argument is its value.

define internal i64 @argument(ptr %arguments, i32 %i) {
  %at = getelementptr { i32, i32, i64 }, ptr %arguments, i32 %i, i32 2
  %value = load i64, ptr %at
  ret i64 %value
}

; Takes numbers of threads and of spins, and addresses of what is called here.
define i32 @__tvm_ffi_configure(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %threads = call i64 @argument(ptr %arguments, i32 0)
  %threads_short = trunc i64 %threads to i32
  store i32 %threads_short, ptr @threads
  %spins = call i64 @argument(ptr %arguments, i32 1)
  %spins_short = trunc i64 %spins to i32
  store i32 %spins_short, ptr @spins
  %move = call i64 @argument(ptr %arguments, i32 2)
  store i64 %move, ptr @move_from_raised
  %set = call i64 @argument(ptr %arguments, i32 3)
  store i64 %set, ptr @set_raised
  %release = call i64 @argument(ptr %arguments, i32 4)
  store i64 %release, ptr @release
  %set_text = call i64 @argument(ptr %arguments, i32 5)
  store i64 %set_text, ptr @set_raised_text
  %check = call i64 @argument(ptr %arguments, i32 6)
  store i64 %check, ptr @check_signals
  %listener = call i64 @argument(ptr %arguments, i32 7)
  store i64 %listener, ptr @listener
  %allocate = call i64 @argument(ptr %arguments, i32 8)
  store i64 %allocate, ptr @allocate
  %free = call i64 @argument(ptr %arguments, i32 9)
  store i64 %free, ptr @free
  %current = call i64 @argument(ptr %arguments, i32 10)
  store i64 %current, ptr @current_cpu
  %get_affinity = call i64 @argument(ptr %arguments, i32 11)
  store i64 %get_affinity, ptr @get_affinity
  %set_affinity = call i64 @argument(ptr %arguments, i32 12)
  store i64 %set_affinity, ptr @set_affinity
  ret i32 0
}

@functions = internal constant [3 x ptr] [ptr @launch, ptr @allocate_noted, ptr @free_noted]

; Returns the address of one of them.
define i32 @__tvm_ffi_function(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %i = call i64 @argument(ptr %arguments, i32 0)
  %at = getelementptr [3 x ptr], ptr @functions, i64 0, i64 %i
  %address = load i64, ptr %at
  store i32 1, ptr %result ; an integer
  %place = getelementptr { i32, i32, i64 }, ptr %result, i32 0, i32 2
  store i64 %address, ptr %place
  ret i32 0
}

; Forgets all threads: those of a process are not copied with it.
define i32 @__tvm_ffi_forget(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  store i64 0, ptr @ticket
  store i32 0, ptr @unfinished
  store i32 0, ptr @is_busy
  store i32 0, ptr @sleeping
  store i32 0, ptr @has_failed
  store ptr null, ptr @error
  call void @llvm.memset.p0.i64(ptr @workers, i8 0, i64 ptrtoint (ptr getelementptr ([33 x %worker], ptr null, i32 1) to i64), i1 false)
  store i32 0, ptr @is_running
  store i32 0, ptr @held_count
  store i32 0, ptr @held_before
  %me = call i64 @pthread_self()
  store i64 %me, ptr @listener
  ret i32 0
}

; What C++ does with a thread that it cannot end: Python, when it ends, ends threads that want its lock, also in the middle
; of C++. They wait for the end of the process instead, as they do from Python 3.14 on.
define internal void @park() {
  %me = call i64 @pthread_self()
  %main = load i64, ptr @main_thread
  %is_main = icmp eq i64 %me, %main
  br i1 %is_main, label %end, label %wait
wait:
  %woken = call i32 @pause()
  br label %wait
end:
  call void @abort()
  unreachable
}

; For the main thread, when Python ends.
define i32 @__tvm_ffi_leave(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %me = call i64 @pthread_self()
  store i64 %me, ptr @main_thread
  %before = call ptr @_ZSt13set_terminatePFvvE(ptr @park)
  ret i32 0
}
