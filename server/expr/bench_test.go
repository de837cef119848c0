package expr_test

import (
	"testing"

	"agentd/server/expr"
)

const condition = "state.order.total > 100 && (input.orderId.startsWith('a') || state.order.lines.exists(l, !l.ok))"

func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := expr.Compile(condition, vars); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEval(b *testing.B) {
	for name, src := range map[string]string{"selection": "state.order.total > 100", "condition": condition} {
		b.Run(name, func(b *testing.B) {
			p, err := expr.Condition(src, vars)
			if err != nil {
				b.Fatal(err)
			}
			in := expr.Scope(scope(b))
			b.ReportAllocs()
			for b.Loop() {
				if ok, err := p.Test(in); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}

// BenchmarkElements evaluates the arguments of a task for each element of a list.
func BenchmarkElements(b *testing.B) {
	args, err := expr.CompileTemplate(map[string]any{"line": "${ item.id }", "note": "Line ${ index } of ${ state.order.name }"}, vars)
	if err != nil {
		b.Fatal(err)
	}
	in := scope(b)
	in["item"] = decode(b, `{"id":7}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := args.Eval(in); err != nil {
			b.Fatal(err)
		}
	}
}
