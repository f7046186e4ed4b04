from benchmarks.gpu.stablehlo import carried_state, count_casts, count_products, unpack_booleans

ALIAS = (
    '{{alias = {{kind = "may_alias", parameter_index = array<i64>, parameter_number = {} : i64}}, '
    "output_index = array<i64: {}>}}"
)
MODULE = f"""
module @step attributes {{mhlo.input_output_alias = [{ALIAS.format(2, 1)}, {ALIAS.format(5, 2)}]}} {{
  %0 = stablehlo.convert %arg0 : (tensor<4x8xf32>) -> tensor<4x8xbf16> loc(#loc1)
  %1 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
  %2 = stablehlo.dot %0, %3, precision = [DEFAULT, DEFAULT] : (tensor<4x8xbf16>, tensor<8x2xbf16>) -> tensor<4x2xbf16>
  %3 = stablehlo.dot_general %2, %4, batching_dims = [] : (tensor<4x2xf32>, tensor<3x2xf32>) -> tensor<4x3xf32>
  %4 = stablehlo.convolution(%5, %6) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{}} \
{{batch_group_count = 1 : i64}} : (tensor<1x4x4x3xf16>, tensor<3x3x3x8xf16>) -> tensor<1x4x4x8xf16>
}}
"""


def test_products_are_counted_by_the_type_of_their_operands():
    assert count_products(MODULE) == {"dot bf16": 1, "dot f32": 1, "convolution f16": 1}


def test_loop_bodies_that_also_stand_there_as_dead_functions_are_counted_once():
    product = "%1 = stablehlo.dot %0, %0 : (tensor<2x2xf16>, tensor<2x2xf16>) -> tensor<2x2xf16>"
    cast = "%2 = stablehlo.convert %1 : (tensor<2x2xf16>) -> tensor<2x2xf32>"
    module = f"""
module @step {{
  func.func private @body.5(%arg0: tensor<2x2xf16>) -> tensor<2x2xf32> {{
    {product}
    {cast}
  }}
  func.func private @helper(%arg0: tensor<2x2xf16>) -> tensor<2x2xf32> {{
    {product}
  }}
  func.func @main(%arg0: tensor<2x2xf16>) -> tensor<2x2xf32> {{
    stablehlo.while(%iterArg = %arg0) : tensor<2x2xf16>
    cond {{
      %4 = func.call @helper(%iterArg) : (tensor<2x2xf16>) -> tensor<2x2xf32>
    }} do {{
      {product}
      {cast}
    }}
  }}
}}
"""
    assert count_products(module) == {"dot f16": 2}
    assert count_casts(module) == 1


def test_only_conversions_between_floating_point_types_are_casts():
    assert count_casts(MODULE) == 1


def test_aliases_say_which_output_is_carried_to_which_argument():
    assert carried_state(MODULE) == {1: 2, 2: 5}


def test_packed_booleans_are_written_with_a_byte_each_and_others_are_left_alone():
    packed = 'dense<"0x0503"> : tensor<2x5xi1>'  # bits 1010 0000 11, least significant first
    assert unpack_booleans(packed) == 'dense<"0x01000100000000000101"> : tensor<2x5xi1>'
    assert unpack_booleans(unpack_booleans(packed)) == unpack_booleans(packed)
    other = 'dense<"0x0503"> : tensor<2xi8>'
    assert unpack_booleans(other) == other
