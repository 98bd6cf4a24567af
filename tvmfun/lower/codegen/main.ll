; The loop of every ``main`` over the steps of a Program, which are data: it is compiled once for all Programs in memory, and
; is a part of each library.

%tvmfun.argument = type { i32, i32, i64 }
; The addresses of:
;
;   functions   their addresses: kernels, and after them those that store constants
;   calls       for each step the index of its function, and the number of its arguments
;   arguments   the arguments of all steps, which are sums of a word of the table at the first slot, of one at the second
;               slot, and of a number; slots below zero stand for zero
;   tick        null, or a function that is called before the first step and after each, with the number of kernels called
;
; and the numbers of steps, of kernels, and of the most arguments of a step.
%tvmfun.program = type { ptr, ptr, ptr, ptr, i64, i64, i64 }

@tvmfun.zero = private constant i64 0

define internal void @tvmfun.count(ptr %tick, ptr %table, i64 %called) {
  %is.null = icmp eq ptr %tick, null
  br i1 %is.null, label %end, label %call

call:
  call void %tick(ptr %table, i64 %called)
  br label %end

end:
  ret void
}

; Exceptions pass through it, such as that of memory that a kernel cannot get.
define internal i32 @tvmfun.run(ptr %program, ptr %given) {
entry:
  %data = load %tvmfun.program, ptr %program
  %functions = extractvalue %tvmfun.program %data, 0
  %calls = extractvalue %tvmfun.program %data, 1
  %arguments = extractvalue %tvmfun.program %data, 2
  %tick = extractvalue %tvmfun.program %data, 3
  %steps = extractvalue %tvmfun.program %data, 4
  %kernels = extractvalue %tvmfun.program %data, 5
  %most = extractvalue %tvmfun.program %data, 6
  %slots = add i64 %most, 1
  %stack = alloca %tvmfun.argument, i64 %slots, align 8
  %table.at = getelementptr %tvmfun.argument, ptr %given, i64 0, i32 2
  %table = load ptr, ptr %table.at
  call void @tvmfun.count(ptr %tick, ptr %table, i64 0)
  br label %next

next:
  %step = phi i64 [ 0, %entry ], [ %step.next, %done ]
  %called = phi i64 [ 0, %entry ], [ %called.next, %done ]
  %first = phi ptr [ %arguments, %entry ], [ %last, %done ]
  %is.step = icmp ult i64 %step, %steps
  br i1 %is.step, label %prepare, label %end

prepare:
  %index.at = getelementptr [2 x i32], ptr %calls, i64 %step
  %index = load i32, ptr %index.at
  %number.at = getelementptr i32, ptr %index.at, i64 1
  %number = load i32, ptr %number.at
  %last = getelementptr %tvmfun.argument, ptr %first, i32 %number
  br label %argument

argument:
  %from = phi ptr [ %first, %prepare ], [ %from.next, %pass ]
  %to = phi ptr [ %stack, %prepare ], [ %to.next, %pass ]
  %is.last = icmp eq ptr %from, %last
  br i1 %is.last, label %run, label %pass

pass:
  %slot = load i32, ptr %from
  %has.slot = icmp sge i32 %slot, 0
  %word.in.table = getelementptr i64, ptr %table, i32 %slot
  %word.at = select i1 %has.slot, ptr %word.in.table, ptr @tvmfun.zero
  %word = load i64, ptr %word.at
  %second.at = getelementptr %tvmfun.argument, ptr %from, i64 0, i32 1
  %second = load i32, ptr %second.at
  %has.second = icmp sge i32 %second, 0
  %more.in.table = getelementptr i64, ptr %table, i32 %second
  %more.at = select i1 %has.second, ptr %more.in.table, ptr @tvmfun.zero
  %more = load i64, ptr %more.at
  %offset.at = getelementptr %tvmfun.argument, ptr %from, i64 0, i32 2
  %offset = load i64, ptr %offset.at
  %sum = add i64 %word, %more
  %value = add i64 %sum, %offset
  %value.at = getelementptr %tvmfun.argument, ptr %to, i64 0, i32 2
  store i64 %value, ptr %value.at
  %from.next = getelementptr %tvmfun.argument, ptr %from, i64 1
  %to.next = getelementptr %tvmfun.argument, ptr %to, i64 1
  br label %argument

run:
  ; Functions return nothing, but what follows the arguments must not look like an object.
  store i32 0, ptr %to
  %function.at = getelementptr ptr, ptr %functions, i32 %index
  %function = load ptr, ptr %function.at
  %status = call i32 %function(ptr null, ptr %stack, i32 %number, ptr %to)
  %is.good = icmp eq i32 %status, 0
  br i1 %is.good, label %done, label %failed

done:
  %wide.index = zext i32 %index to i64
  %is.kernel = icmp ult i64 %wide.index, %kernels
  %one = zext i1 %is.kernel to i64
  %called.next = add i64 %called, %one
  call void @tvmfun.count(ptr %tick, ptr %table, i64 %called.next)
  %step.next = add i64 %step, 1
  br label %next

failed:
  ret i32 %status

end:
  ret i32 0
}
